"""The competition: three events, a judge, records that can be checked, and boards made of them."""
