"""Where inside the model length breaks it: interventions (locate) and measurements (anatomy)."""
