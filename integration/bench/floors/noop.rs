//! A program that does nothing, with std and the C library: the floor that the targets refer to.

fn main() {}
