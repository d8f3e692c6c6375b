def slots_of(length, drafted):
    return length + (0 if drafted == 1 else length // 10 + drafted)
