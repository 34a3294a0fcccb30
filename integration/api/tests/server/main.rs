//! Requests to the test API server over TLS, with a client that shows every byte of the responses.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation ends the test"
)]

mod faults;
mod lists_and_watches;
mod recordings;

use gybe_api_server::{ApiServer, Token, Validity};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Longer than any expected response takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A client that trusts the server's authority.
pub(crate) struct Client<'a> {
    server: &'a ApiServer,
    token: Option<Token>,
    agent: &'static str,
}

/// A response's head; its body is read on request.
pub(crate) struct HttpResponse {
    pub(crate) code: u16,
    pub(crate) headers: Vec<(String, String)>,
    body: BufReader<Stream>,
}

impl<'a> Client<'a> {
    /// A client with a valid token.
    pub(crate) fn new(server: &'a ApiServer) -> Self {
        Self::with_token(server, server.tokens().issue(Validity::Valid))
    }

    pub(crate) fn with_token(server: &'a ApiServer, token: Token) -> Self {
        Self { server, token: Some(token), agent: "gybe" }
    }

    pub(crate) fn anonymous(server: &'a ApiServer) -> Self {
        Self { server, token: None, agent: "gybe" }
    }

    /// Sends the user agent with which the recordings were made.
    pub(crate) fn with_curl_user_agent(mut self) -> Self {
        self.agent = "curl/7.88.1";
        self
    }

    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.try_get(path, TIMEOUT).unwrap()
    }

    pub(crate) fn try_get(&self, path: &str, timeout: Duration) -> io::Result<HttpResponse> {
        let mut stream = self.connect(timeout)?;
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {}\r\n", token.text()));
        let agent = self.agent;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: {agent}\r\nConnection: close\r\n"
        );
        // One write: with two, the kernel would delay the second until the first is acknowledged.
        stream.write_all(format!("{head}{}\r\n", token.unwrap_or_default()).as_bytes())?;
        HttpResponse::read(BufReader::new(stream))
    }

    fn connect(&self, timeout: Duration) -> io::Result<Stream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.server.ca_pem().as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = self.server.address();
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        let connection = ClientConnection::new(Arc::new(config), address.ip().into()).unwrap();
        Ok(StreamOwned::new(connection, stream))
    }
}

impl HttpResponse {
    fn read(mut body: BufReader<Stream>) -> io::Result<Self> {
        let mut line = || {
            let mut line = String::new();
            body.read_line(&mut line)?;
            Ok::<_, io::Error>(line.trim_end().to_owned())
        };
        let status = line()?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, status))?;
        let mut headers = Vec::new();
        loop {
            let header = line()?;
            let Some((name, value)) = header.split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        Ok(Self { code, headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Reads the next chunk of a chunked body; `None` after the last.
    pub(crate) fn chunk(&mut self) -> io::Result<Option<String>> {
        let mut length = String::new();
        self.body.read_line(&mut length)?;
        let length = usize::from_str_radix(length.trim(), 16);
        let length = length.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let mut chunk = vec![0; length + 2];
        self.body.read_exact(&mut chunk)?;
        chunk.truncate(length);
        Ok(Some(String::from_utf8(chunk).unwrap()).filter(|chunk| !chunk.is_empty()))
    }

    /// Reads the next event of a watch.
    pub(crate) fn event(&mut self) -> Value {
        serde_json::from_str(&self.chunk().unwrap().unwrap()).unwrap()
    }

    /// Reads the whole body.
    pub(crate) fn text(mut self) -> String {
        if self.header("transfer-encoding") == Some("chunked") {
            let mut all = String::new();
            while let Some(chunk) = self.chunk().unwrap() {
                all.push_str(&chunk);
            }
            return all;
        }
        let length = self.header("content-length").unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.body.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }
}
