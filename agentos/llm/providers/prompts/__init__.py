"""Parts of prompts in vendors' formats."""
