//! Lets in who knows the token.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::api;

/// A secret that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Box<str>);

impl Token {
    /// Whether the headers carry it. How long that takes tells its length at most.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else {
            return false;
        };
        match given.as_bytes().split_at_checked("Bearer ".len()) {
            Some((scheme, secret)) if scheme.eq_ignore_ascii_case(b"Bearer ") => {
                secret.trim_ascii().ct_eq(self.0.as_bytes()).into()
            }
            _ => false,
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Passes a request on if no token is asked for or it carries the right one.
pub(super) async fn check(
    State(token): State<Option<Token>>,
    request: Request,
    next: Next,
) -> Response {
    if token.is_none_or(|token| token.is_in(request.headers())) {
        return next.run(request).await;
    }
    let mut response = api::error(
        StatusCode::UNAUTHORIZED,
        "the admin token is asked for, as \"Authorization: Bearer TOKEN\"",
    );
    response.headers_mut().insert(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"tidegate\""),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &[&str], admitted: bool) {
        let mut map = HeaderMap::new();
        for value in headers {
            let value = HeaderValue::from_str(value).expect("a header value");
            map.append(header::AUTHORIZATION, value);
        }
        let token = Token("s3cret".into());
        assert_eq!(token.is_in(&map), admitted, "{headers:?}");
    }

    #[test]
    fn only_the_whole_token_given_once_as_bearer_lets_in() {
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
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token("s3cret".into())), "Token(…)");
    }
}
