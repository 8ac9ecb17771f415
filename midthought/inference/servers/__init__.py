"""Model servers as engines: how they are started, spoken to, given new weights and relied on. Knows HTTP and token ids."""
