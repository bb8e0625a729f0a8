"""How the controller reads and retunes an engine: the contract and its adapters."""
