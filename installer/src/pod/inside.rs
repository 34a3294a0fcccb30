//! What a program has inside, by which it is known whatever it is called.

use std::io::{self, Read};

/// Whether these words are in it. Piece by piece: a container's memory may be smaller than the program.
pub(crate) fn holds(mut source: impl Read, words: &[u8]) -> io::Result<bool> {
    let (mut piece, mut held) = (vec![0; 1 << 16], Vec::new());
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            return Ok(false);
        }
        held.extend_from_slice(piece.get(..read).unwrap_or_default());
        if held.windows(words.len()).any(|window| window == words) {
            return Ok(true);
        }
        // They may begin here and end in the next one.
        held.drain(..held.len().saturating_sub(words.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &[u8] = b"gybe-cni";

    #[test]
    fn words_are_found_wherever_a_piece_ends() {
        struct Pieces<'a>(std::slice::Chunks<'a, u8>);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let piece = self.0.next().unwrap_or_default();
                into[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let program = [b"gybe-c\0".as_slice(), WORDS, b"\0"].concat();
        for length in 1..=program.len() {
            assert!(holds(Pieces(program.chunks(length)), WORDS).unwrap(), "{length}");
            assert!(!holds(Pieces(program[..program.len() - 2].chunks(length)), WORDS).unwrap(), "{length}");
        }
    }
}
