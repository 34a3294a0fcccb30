//! Splits bytes into lines of bounded length as they arrive. Pure.

use super::pod_requests::MAX_OBJECT;

#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    bytes: Vec<u8>,
    /// The number of bytes that are known to contain no newline.
    searched: usize,
}

/// A line exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

impl LineSplitter {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line that is not empty.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let unseen = self.bytes.get(self.searched..).unwrap_or_default();
            let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.bytes.len();
                return if self.searched > MAX_OBJECT { Err(TooLong) } else { Ok(None) };
            };
            let mut line: Vec<u8> = self.bytes.drain(..=self.searched.saturating_add(end)).collect();
            self.searched = 0;
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
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            lines.feed(bytes);
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        found
    }

    #[test]
    fn lines_are_complete_wherever_the_bytes_are_split() {
        for piece in 1..20 {
            assert_eq!(lines("one\ntwo\n\nthree\nhal", piece), ["one", "two", "three"], "{piece}");
        }
        assert_eq!(lines("half", 1), Vec::<String>::new());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = LineSplitter::default();
        let piece = [b'x'; 1 << 20];
        let ended = (0..6).any(|_| {
            lines.feed(&piece);
            lines.next().is_err()
        });
        assert!(ended && lines.bytes.len() <= MAX_OBJECT + piece.len());
    }
}
