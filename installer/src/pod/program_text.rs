//! Searches a program's file for text, which identifies the program whatever its file name is.

use std::io::{self, Read};

/// Reports whether `source` contains `text`. Reads in pieces: a container's memory may be smaller than the program.
pub(crate) fn contains(mut source: impl Read, text: &[u8]) -> io::Result<bool> {
    let (mut piece, mut searched) = (vec![0; 1 << 16], Vec::new());
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            return Ok(false);
        }
        searched.extend_from_slice(piece.get(..read).unwrap_or_default());
        if searched.windows(text.len()).any(|window| window == text) {
            return Ok(true);
        }
        // The text may begin in this piece and end in the next one.
        searched.drain(..searched.len().saturating_sub(text.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"gybe-cni";

    #[test]
    fn text_is_found_wherever_a_piece_ends() {
        struct Pieces<'a>(std::slice::Chunks<'a, u8>);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let piece = self.0.next().unwrap_or_default();
                into[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let program = [b"gybe-c\0".as_slice(), TEXT, b"\0"].concat();
        for length in 1..=program.len() {
            assert!(contains(Pieces(program.chunks(length)), TEXT).unwrap(), "{length}");
            assert!(
                !contains(Pieces(program[..program.len() - 2].chunks(length)), TEXT).unwrap(),
                "{length}"
            );
        }
    }
}
