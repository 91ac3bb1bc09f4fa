"""Predicted against measured runs: from a file of runs to error statistics.

    rows -> problem (rows as jobs) -> choose (what a row leaves open) -> results -> scores -> report

Nothing here knows a formula for cost: whatever prices is handed in (`pricers`).
"""
