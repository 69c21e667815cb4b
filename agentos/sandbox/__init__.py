"""Sandbox: run programs isolated by namespaces, seccomp, Landlock and cgroups; usable without the kernel."""
