"""Read and write decisions and records: plans, approvals, accepted runs and the quarantine ledger."""
