"""Read and write decisions and records, such as plans, approvals and the quarantine ledger."""
