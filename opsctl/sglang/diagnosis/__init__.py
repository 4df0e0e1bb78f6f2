"""Why a server accepts what it accepts: evidence, hypotheses, causes."""
