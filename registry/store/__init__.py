"""The durable store: SQLite behind one repository per noun."""
