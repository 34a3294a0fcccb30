//! The installer on real directories: every choice, every rewrite, every way in and out.

mod always;
mod choices;
mod conflists;
mod ground;
mod lives;
mod programs;
mod wants;
mod watches;
