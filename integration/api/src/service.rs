//! One request from its coming to its answer, in the order of a real server: who is it, may he, what is it.

use crate::answer::{Answer, Cut, Failure, Layout, object, plain};
use crate::faults::{Faults, Trouble};
use crate::list::list;
use crate::objects::Objects;
use crate::requests::{Ledger, Request};
use crate::tokens::{Bearer, SERVICE_ACCOUNT, Tokens};
use crate::watch::{Nudge, watch};
use crate::wish::{Verb, Wish};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, USER_AGENT};
use hyper::http::request::Parts;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;

/// All a request may need.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) objects: Arc<Objects>,
    pub(crate) tokens: Tokens,
    pub(crate) faults: Faults,
    pub(crate) ledger: Ledger,
    pub(crate) nudges: broadcast::Sender<Nudge>,
    rights: Mutex<BTreeSet<(Verb, &'static str)>>,
}

/// What the agent's ClusterRole lets it do.
const RIGHTS: [(Verb, &str); 5] = [
    (Verb::Get, "pods"),
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Get, "nodes"),
    (Verb::Get, "daemonsets"),
];

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            objects: Arc::new(Objects::new()),
            tokens: Tokens::default(),
            faults: Faults::default(),
            ledger: Ledger::default(),
            nudges: broadcast::Sender::new(64),
            rights: Mutex::new(BTreeSet::from(RIGHTS)),
        }
    }

    pub(crate) fn permit(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).insert((verb, resource));
    }

    pub(crate) fn forbid(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).remove(&(verb, resource));
    }

    /// Answers, or cuts the connection, which is kept from an earlier request or new.
    pub(crate) async fn answer(self: Arc<Self>, request: Parts, kept: bool) -> Result<Answer, Cut> {
        let Parts { method, uri, headers, .. } = request;
        let query = uri.query().unwrap_or_default();
        let wish = Wish::parse(&method, uri.path(), query);
        let (bearer, counts) = self.bearer(&headers);
        let place = self.ledger.came(Request {
            method: method.to_string(),
            path: uri.path().to_owned(),
            query: query.to_owned(),
            bearer,
            code: None,
        });
        let layout = Layout::of(headers.get(USER_AGENT));
        let answer = match self.faults.next(wish.as_ref().map(|wish| wish.verb), kept) {
            Some(Trouble::Disconnects) => return Err(Cut),
            Some(Trouble::Silent) => std::future::pending().await,
            Some(Trouble::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                None
            }
            Some(trouble) => trouble.answer(layout),
            None => None,
        };
        let answer = answer.unwrap_or_else(|| self.in_order(wish.as_ref(), (bearer, counts), layout));
        self.ledger.answered(place, answer.status().as_u16());
        Ok(answer)
    }

    fn bearer(&self, headers: &HeaderMap) -> (Bearer, bool) {
        let Some(header) = headers.get(AUTHORIZATION) else { return (Bearer::Nobody, true) };
        let token = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer "));
        token.map_or((Bearer::Stranger, false), |token| self.tokens.known(token.trim()))
    }

    fn in_order(&self, wish: Option<&Wish>, (bearer, counts): (Bearer, bool), layout: Layout) -> Answer {
        if !counts {
            return Failure::unauthorized().answer(layout);
        }
        let Some(wish) = wish else { return plain(404, "404 page not found\n") };
        let user = match bearer {
            Bearer::Token(_) => format!("system:serviceaccount:{}:{}", SERVICE_ACCOUNT.0, SERVICE_ACCOUNT.1),
            Bearer::Nobody | Bearer::Stranger => "system:anonymous".to_owned(),
        };
        if !self.may(bearer, wish) {
            return Failure::forbidden(wish, &user).answer(layout);
        }
        self.done(wish, layout).unwrap_or_else(|failure| failure.answer(layout))
    }

    fn may(&self, bearer: Bearer, wish: &Wish) -> bool {
        let rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = |(verb, name): &(Verb, &str)| *verb == wish.verb && *name == wish.resource;
        matches!(bearer, Bearer::Token(_)) && rights.iter().any(granted)
    }

    fn done(&self, wish: &Wish, layout: Layout) -> Result<Answer, Failure> {
        let kind = wish.kind().ok_or_else(|| Failure::not_found(wish))?;
        match (wish.verb, &wish.name) {
            (Verb::Get, Some(name)) => {
                let key = (wish.namespace.clone().unwrap_or_default(), name.clone());
                let found = self.objects.get(kind, &key).ok_or_else(|| Failure::not_found(wish))?;
                Ok(object(&found, layout))
            }
            (Verb::List, None) => list(&self.objects, kind, wish),
            (Verb::Watch, None) => watch(&self.objects, kind, wish, self.nudges.subscribe()),
            // Nothing is written here by its clients.
            _ => Err(Failure::other(405, "MethodNotAllowed", "the server does not allow this method")),
        }
    }
}
