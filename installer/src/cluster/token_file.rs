//! A token in a file that the kubelet renews before it expires; it is read for every request.
//!
//! The kube crate caches a token for 50 seconds of wall-clock time, even if the API server has refused it in between.
//! Requests are rare here, and a read from tmpfs takes microseconds.

use super::error::ApiError;
use gybe_plugin::bounded_read;
use hyper::header::HeaderValue;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Bytes; larger than any token.
const MAX_SIZE: u64 = 64 << 10;

/// The file, and the token that was last read from it.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Marked as sensitive: its `Debug` omits the value.
    last: Mutex<Option<HeaderValue>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::default() }
    }

    /// Returns the file's token, or the last one while the file cannot be read.
    pub(crate) fn bearer(&self) -> Result<HeaderValue, ApiError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.read() {
            Ok(header) => Ok(last.insert(header).clone()),
            Err(cause) => last.clone().ok_or_else(|| ApiError::Token {
                path: self.path.display().to_string(),
                cause: cause.to_string(),
            }),
        }
    }

    fn read(&self) -> io::Result<HeaderValue> {
        let (file, _) = bounded_read::open_file(&self.path)?;
        let mut text = String::new();
        file.take(MAX_SIZE).read_to_string(&mut text)?;
        let token = text.trim();
        let no_token = || io::Error::other("it contains no token");
        if token.is_empty() || token.chars().any(char::is_whitespace) {
            return Err(no_token());
        }
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| no_token())?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn f02_the_files_token_is_sent_and_the_last_one_while_it_cannot_be_read() {
        let directory = TestDir::new("token");
        let path = directory.join("token");
        let file = TokenFile::new(path.clone());
        assert!(matches!(file.bearer(), Err(ApiError::Token { .. })));
        for token in ["one", "two\n", "three"] {
            std::fs::write(&path, token).unwrap();
            assert_eq!(file.bearer().unwrap(), format!("Bearer {}", token.trim()));
        }
        for nothing in ["", "\n", "a b", "a\u{1}b"] {
            std::fs::write(&path, nothing).unwrap();
            assert_eq!(file.bearer().unwrap(), "Bearer three", "{nothing:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.bearer().unwrap(), "Bearer three");
        assert!(!format!("{file:?}").contains("three"));
    }
}
