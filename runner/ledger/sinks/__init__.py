"""Where a run's events go while it runs: TensorBoard, Prometheus, Weights & Biases, MLflow.

All are consumers of the ledger, fed by the supervisor of each node: a rank never waits for one.
"""
