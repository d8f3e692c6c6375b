"""The paper's figures: one module, one draw function each, from plain numbers to a matplotlib figure."""
