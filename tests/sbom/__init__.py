"""Bills of materials in CycloneDX: of a wheel with what it needs, and of a runtime image."""
