"""A gateway on another machine, reached over one SSH connection. Imported only for --ssh."""
