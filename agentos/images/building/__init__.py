"""Images that are built of a Dockerfile: its parser, the files of its context, and the steps. docs/decisions/0115."""
