//! The image the sandboxes are made of: the one program in it, and nothing else.

use std::io;

use crate::config::PAUSE_IMAGE;
use crate::image::Image;

/// The program, static, as the build script made it.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The tar archive `ctr images import` takes.
pub fn archive() -> io::Result<Vec<u8>> {
    Image { name: PAUSE_IMAGE, files: &[("pause", PROGRAM)], entrypoint: "/pause" }.archive()
}
