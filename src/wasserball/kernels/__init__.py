"""The few row-wise kernels that every operator stands on. Called by operators only."""
