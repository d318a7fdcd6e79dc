"""How much of what, and where: the numbers behind the decisions."""
