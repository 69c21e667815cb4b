"""How clients connect."""
