"""Make plans and execute them: expire, quarantine, purge, restore and abort."""
