"""Fine-tuning what is large, on models that are small enough to be made here."""
