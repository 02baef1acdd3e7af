"""What things cost, as ratios measured side by side: this library, plain torch, and the textbook formulas."""
