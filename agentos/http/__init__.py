"""An HTTP/1.1 server on Trio, for gateways."""
