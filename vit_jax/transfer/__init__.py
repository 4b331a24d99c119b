"""How published work fine-tunes and evaluates: tables that recipes and sweeps share."""
