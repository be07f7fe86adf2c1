//! Accepts requests with the token, and refuses requests that a browser sends for another page.
//!
//! Where there is no token, the address is a loopback one, and every program that can connect is
//! trusted. So is every program that can open the socket file. A browser on this machine can connect too, for any page that it shows. Where there
//! is a token, a browser that was given it as a password adds it to every request by itself.
//! So `tidegate_runtime::origin` looks at every request, with a token or without.
//!
//! A body must also have the type JSON. A browser sends that to another origin only after a
//! preflight request, which is never allowed.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;
use tidegate_runtime::origin;

use super::{AdminPeer, AdminSettings, Author, api};

/// Every request of the page at `/` has this header.
const ASKED_BY_THE_PAGE: &str = "x-tidegate-page";

/// A secret that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Box<str>);

impl Token {
    /// Whether the headers have it, as a bearer token or as the password of any user. The time that
    /// this takes reveals at most its length.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let Ok(Some(given)) = origin::only(headers, &header::AUTHORIZATION) else {
            return false;
        };
        let given = given.as_bytes();
        let Some(space) = given.iter().position(|byte| *byte == b' ') else {
            return false;
        };
        let (scheme, secret) = (&given[..space], given[space..].trim_ascii());
        if scheme.eq_ignore_ascii_case(b"Bearer") {
            return self.is(secret);
        }
        if scheme.eq_ignore_ascii_case(b"Basic") {
            let decoded = BASE64.decode(secret).unwrap_or_default();
            let colon = decoded.iter().position(|byte| *byte == b':');
            return colon.is_some_and(|colon| self.is(&decoded[colon + 1..]));
        }
        false
    }

    fn is(&self, secret: &[u8]) -> bool {
        secret.ct_eq(self.0.as_bytes()).into()
    }
}

/// A token with the name of who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    /// The name, for the log of what operators changed.
    pub name: Arc<str>,
    /// The token.
    pub token: Token,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Passes a request on if it comes from this address and carries a token, if there is one. Then it
/// has an [`Author`].
pub(super) async fn check(
    State(settings): State<Arc<AdminSettings>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(refusal) = foreign(&settings, &request) {
        return refusal;
    }
    match author(&settings, &request) {
        None => ask_for_the_token(request.headers().contains_key(ASKED_BY_THE_PAGE)),
        Some(author) if request.method().is_safe() => {
            request.extensions_mut().insert(author);
            next.run(request).await
        }
        Some(author) => {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            request.extensions_mut().insert(author.clone());
            let answer = next.run(request).await;
            let status = answer.status().as_u16();
            tracing::info!(%author, %method, path, status, "asked to change something");
            answer
        }
    }
}

/// The author of a request; `None` if it lacks a token.
fn author(settings: &AdminSettings, request: &Request) -> Option<Author> {
    let peer = request.extensions().get::<AdminPeer>().copied();
    let peer = peer.expect("every connection has its peer");
    let headers = request.headers();
    // All are compared, so the time does not tell which one is near.
    let given = settings.tokens().filter(|(_, token)| token.is_in(headers));
    let name = given.map(|(name, _)| name).last();
    let trusted = settings.tokens().next().is_none() || matches!(peer, AdminPeer::Uid(_));
    (trusted || name.is_some()).then(|| Author::new(peer, name.as_ref()))
}

impl AdminSettings {
    /// Every token, with the name of who has it.
    fn tokens(&self) -> impl Iterator<Item = (Arc<str>, &Token)> {
        let one = self.token.iter().map(|token| ("admin".into(), token));
        let others = self.tokens.iter();
        one.chain(others.map(|it| (Arc::clone(&it.name), &it.token)))
    }

    /// Whether requests need a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some() || !self.tokens.is_empty()
    }
}

/// Passes a request on if it comes from this address. What it asks for needs no token.
pub(super) async fn check_origin(
    State(settings): State<Arc<AdminSettings>>,
    request: Request,
    next: Next,
) -> Response {
    match foreign(&settings, &request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// Whether a request may see what only operators may see.
#[derive(Clone, Copy)]
pub(super) struct Trusted(pub(super) bool);

/// Passes a probe on. A probe for details must come from this address. The others reveal nothing
/// secret.
pub(super) async fn check_probe(
    State(settings): State<Arc<AdminSettings>>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().query().is_some()
        && let Some(refusal) = foreign(&settings, &request)
    {
        return refusal;
    }
    let trusted = author(&settings, &request).is_some();
    request.extensions_mut().insert(Trusted(trusted));
    next.run(request).await
}

/// A refusal that names the ways to give the token. Our own page asks for it in a form, so its
/// requests get no challenge for which the browser opens a dialog.
fn ask_for_the_token(by_the_page: bool) -> Response {
    let mut response = api::error(
        StatusCode::UNAUTHORIZED,
        "the admin token is required: as \"Authorization: Bearer TOKEN\", or as the password of \
         basic auth, with any user name",
    );
    // A browser asks its user for the first. Each has its own line, because some browsers read only
    // one challenge in a line.
    let challenges = [
        "Basic realm=\"tidegate\", charset=\"UTF-8\"",
        "Bearer realm=\"tidegate\"",
    ];
    for challenge in &challenges[usize::from(by_the_page)..] {
        let challenge = HeaderValue::from_static(challenge);
        response
            .headers_mut()
            .append(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The refusal of a request that a browser sent for a page of another origin.
fn foreign(settings: &AdminSettings, request: &Request) -> Option<Response> {
    let (method, headers) = (request.method(), request.headers());
    let header = origin::foreign(method, headers, &settings.allowed_hosts)?;
    Some(api::refuse(
        StatusCode::FORBIDDEN,
        "FORBIDDEN",
        header.field(),
        &header.reason("admin.allowed_hosts"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &[&str], admitted: bool) {
        let value = |text: &&str| HeaderValue::from_str(text).expect("a header value");
        let headers = given.iter().map(|it| (header::AUTHORIZATION, value(it)));
        let token = Token("s3cret".into());
        assert_eq!(token.is_in(&headers.collect()), admitted, "{given:?}");
    }

    #[test]
    fn only_the_whole_token_given_once_lets_in() {
        check(&["Bearer s3cret"], true);
        check(&["bearer s3cret"], true);
        check(&["BEARER  s3cret"], true);
        check(&[], false);
        check(&["Bearer "], false);
        check(&["Bearer"], false);
        check(&["s3cret"], false);
        check(&["Basic s3cret"], false);
        check(&["Bearer s3cre"], false);
        check(&["Bearer s3crets"], false);
        check(&["Bearer S3CRET"], false);
        check(&["Bearer s3cret", "Bearer s3cret"], false);
        check(&["Bearer wrong", "Bearer s3cret"], false);
    }

    #[test]
    fn the_token_is_the_password_of_any_user() {
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
        check(&[&basic("admin:s3cret")], true);
        check(&[&basic(":s3cret")], true);
        check(&[&basic("admin:s3cret").replace("Basic", "basic")], true);
        check(&[&basic("s3cret")], false);
        check(&[&basic("s3cret:")], false);
        check(&[&basic("admin:s3cret:")], false);
        check(&[&basic("admin:s3cret"), &basic("admin:s3cret")], false);
        check(&["Basic !!!"], false);
        check(&["Basic"], false);
    }

    #[test]
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token("s3cret".into())), "Token(…)");
    }
}
