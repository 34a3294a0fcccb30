//! Lines out of bytes as they come, each bounded. Pure.

use super::pods::LONGEST_OBJECT;

/// What has come and was not yet handed on.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// So many of them are known to hold no end of a line.
    looked: usize,
}

/// A line that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line that is whole; none that is empty.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let unseen = self.bytes.get(self.looked..).unwrap_or_default();
            let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
                self.looked = self.bytes.len();
                return if self.looked > LONGEST_OBJECT { Err(TooLong) } else { Ok(None) };
            };
            let mut line: Vec<u8> = self.bytes.drain(..=self.looked.saturating_add(end)).collect();
            self.looked = 0;
            line.pop();
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, piece: usize) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            lines.feed(bytes);
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        found
    }

    #[test]
    fn lines_are_whole_wherever_the_bytes_are_cut() {
        for piece in 1..20 {
            assert_eq!(lines("one\ntwo\n\nthree\nhal", piece), ["one", "two", "three"], "{piece}");
        }
        assert_eq!(lines("half", 1), Vec::<String>::new());
    }

    #[test]
    fn a_line_that_never_ends_is_not_gathered() {
        let mut lines = Lines::default();
        let piece = [b'x'; 1 << 20];
        let ended = (0..6).any(|_| {
            lines.feed(&piece);
            lines.next().is_err()
        });
        assert!(ended && lines.bytes.len() <= LONGEST_OBJECT + piece.len());
    }
}
