"""The dashboard below /ui: its built files, served, and how they are built."""
