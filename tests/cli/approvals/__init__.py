"""Commands about approvals, permissions and the audit."""
