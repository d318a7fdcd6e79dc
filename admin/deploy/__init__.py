"""Deploys: checked, verified, switched; and what is removed again."""
