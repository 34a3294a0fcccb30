//! A client as plain as can be: one request per connection, and the answer as it came.

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

/// Longer than anything here takes that comes at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Somebody who trusts the server, and may have a token.
pub(crate) struct Client<'a> {
    server: &'a ApiServer,
    token: Option<Token>,
    agent: &'static str,
}

/// The head of an answer, and what is to be read behind it.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: Vec<(String, String)>,
    body: BufReader<Stream>,
}

impl<'a> Client<'a> {
    /// With a token that counts.
    pub(crate) fn of(server: &'a ApiServer) -> Self {
        Self::with(server, server.tokens().issue(Validity::Now))
    }

    pub(crate) fn with(server: &'a ApiServer, token: Token) -> Self {
        Self { server, token: Some(token), agent: "gybe" }
    }

    pub(crate) fn anonymous(server: &'a ApiServer) -> Self {
        Self { server, token: None, agent: "gybe" }
    }

    /// As the recordings were made.
    pub(crate) fn called_curl(mut self) -> Self {
        self.agent = "curl/7.88.1";
        self
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.try_get(path, PATIENCE).unwrap()
    }

    pub(crate) fn try_get(&self, path: &str, patience: Duration) -> io::Result<Answer> {
        let mut stream = self.connect(patience)?;
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {}\r\n", token.text()));
        let agent = self.agent;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: {agent}\r\nConnection: close\r\n"
        );
        // In one piece: the kernel would keep a second one back until the first is acknowledged.
        stream.write_all(format!("{head}{}\r\n", token.unwrap_or_default()).as_bytes())?;
        Answer::read(BufReader::new(stream))
    }

    fn connect(&self, patience: Duration) -> io::Result<Stream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.server.ca_pem().as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = self.server.address();
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let connection = ClientConnection::new(Arc::new(config), address.ip().into()).unwrap();
        Ok(StreamOwned::new(connection, stream))
    }
}

impl Answer {
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
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The next piece of a body that comes in pieces; nothing after the last.
    pub(crate) fn piece(&mut self) -> io::Result<Option<String>> {
        let mut length = String::new();
        self.body.read_line(&mut length)?;
        let length = usize::from_str_radix(length.trim(), 16);
        let length = length.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let mut piece = vec![0; length + 2];
        self.body.read_exact(&mut piece)?;
        piece.truncate(length);
        Ok(Some(String::from_utf8(piece).unwrap()).filter(|piece| !piece.is_empty()))
    }

    /// The next event of a watch.
    pub(crate) fn event(&mut self) -> Value {
        serde_json::from_str(&self.piece().unwrap().unwrap()).unwrap()
    }

    /// All of the body.
    pub(crate) fn text(mut self) -> String {
        if self.header("transfer-encoding") == Some("chunked") {
            let mut all = String::new();
            while let Some(piece) = self.piece().unwrap() {
                all.push_str(&piece);
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
