"""What is on record: plans with their approvals, and the quarantine ledger."""
