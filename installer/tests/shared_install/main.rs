//! Conf directories before and after the incumbent's installer ran, with our entry in place of theirs.
