"""What runs inside a replica. Imports nothing else of ours; everyone may import `contract`."""
