//! The installer on real directories: every choice, every crash, every rewrite.

mod choices;
mod conflists;
mod ground;
