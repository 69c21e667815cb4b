"""Three coding agents of three protocols, on three copies of one repository."""
