//! How long the certificates are valid that this sidecar shows, and those of the authorities that it trusts.

use std::fs;
use std::time::{Duration, SystemTime};

use tidegate_runtime::tls;

use super::Finding;
use super::kinds::CERTIFICATE;
use crate::config::{CertificateFile, Config};
use crate::protocol::certificate::validity;

/// A certificate should be renewed this long before its end, or when a tenth of its time is left if that is later:
/// some live for a day only.
const AHEAD_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
const DAY: u64 = 24 * 3600;

/// A finding for each file.
pub(super) fn check(config: &Config, now: SystemTime) -> Vec<Finding> {
    let files = config.certificates.iter();
    files.map(|it| finding(it, now)).collect()
}

fn finding(file: &CertificateFile, now: SystemTime) -> Finding {
    let shown = file.path.display();
    let Some((from, to)) = span(file) else {
        return CERTIFICATE.skipped(
            file.option,
            format!("{shown}: cannot tell how long it is valid"),
        );
    };
    // Of "Wed, 01 Jan 2020 00:00:00 GMT" the day alone.
    let on = |at| httpdate::fmt_http_date(at)[5..16].to_owned();
    let renew = "renew it, and reload with SIGHUP";
    if now < from {
        return CERTIFICATE.failed(
            file.option,
            format!("{shown} is not valid before {}", on(from)),
            "until then every connection that needs it fails",
            "correct the clock of this machine, or of the one that issued it",
        );
    }
    let Ok(left) = to.duration_since(now) else {
        let cause = "every connection that needs it fails";
        return CERTIFICATE.failed(
            file.option,
            format!("{shown} has expired on {}", on(to)),
            cause,
            renew,
        );
    };
    let life = to.duration_since(from).unwrap_or_default();
    if left < AHEAD_MAX.min(life / 10) {
        return CERTIFICATE.warning(
            file.option,
            format!("{shown} expires in {}, on {}", in_words(left), on(to)),
            "from then on every connection that needs it fails",
            renew,
        );
    }
    CERTIFICATE.ok(
        file.option,
        format!("{shown} is valid for {}", in_words(left)),
    )
}

/// When a file can be used. `None` if it cannot be read.
///
/// Of a chain, each certificate must be valid. Of authorities any may be the one that counts, so one that has expired
/// beside its successor does no harm.
fn span(file: &CertificateFile) -> Option<(SystemTime, SystemTime)> {
    let bytes = fs::read(&file.path).ok()?;
    let certificates = tls::certificates(&bytes).ok()?;
    let spans: Option<Vec<_>> = certificates.iter().map(|it| validity(it)).collect();
    let spans = spans?.into_iter();
    match file.is_of_authorities {
        true => spans.max_by_key(|(_, to)| *to),
        false => spans.reduce(|one, other| (one.0.max(other.0), one.1.min(other.1))),
    }
}

fn in_words(left: Duration) -> String {
    match left.as_secs() {
        seconds if seconds >= 2 * DAY => format!("{} days", seconds / DAY),
        seconds => format!("{} hours", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::tools::check::probe::CheckStatus;

    const DAYS: i64 = 24 * 3600;

    fn pem(from: i64, to: i64) -> String {
        let at = |seconds: i64| {
            let length = Duration::from_secs(seconds.unsigned_abs());
            let now = date_time_ymd(2027, 1, 15);
            if seconds < 0 {
                now - length
            } else {
                now + length
            }
        };
        let mut params = CertificateParams::new(["a.example".to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (at(from), at(to));
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").pem()
    }

    fn check(
        path: &Path,
        is_of_authorities: bool,
        pems: &[String],
        status: CheckStatus,
        words: &str,
    ) {
        fs::write(path, pems.concat()).expect("written");
        let file = CertificateFile {
            option: "quota_store.ca",
            path: path.to_owned(),
            is_of_authorities,
        };
        let finding = finding(&file, date_time_ymd(2027, 1, 15).into());
        assert_eq!(finding.status, status, "{finding:?}");
        assert!(finding.found.contains(words), "{words:?}: {finding:?}");
    }

    #[test]
    fn a_certificate_is_warned_of_before_it_expires_and_a_short_lived_one_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.pem");
        let one = |from, to, status, words| check(&path, false, &[pem(from, to)], status, words);
        one(-DAYS, 365 * DAYS, CheckStatus::Ok, "valid for 365 days");
        one(-351 * DAYS, 14 * DAYS, CheckStatus::Ok, "valid for 14 days");
        one(
            -351 * DAYS,
            14 * DAYS - 1,
            CheckStatus::Warning,
            "expires in 13 days, on ",
        );
        one(
            -DAYS + 3 * 3600,
            3 * 3600,
            CheckStatus::Ok,
            "valid for 3 hours",
        );
        one(
            -DAYS + 2 * 3600,
            2 * 3600,
            CheckStatus::Warning,
            "expires in 2 hours",
        );
        one(-2 * DAYS, -1, CheckStatus::Failed, "has expired on ");
        one(1, DAYS, CheckStatus::Failed, "not valid before ");
    }

    #[test]
    fn of_a_chain_the_first_to_expire_counts_and_of_authorities_the_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.pem");
        let both = [pem(-DAYS, 365 * DAYS), pem(-100 * DAYS, -1)];
        check(&path, false, &both, CheckStatus::Failed, "has expired");
        check(&path, true, &both, CheckStatus::Ok, "valid for 365 days");
        check(
            &path,
            true,
            &["none".to_owned()],
            CheckStatus::Skipped,
            "cannot tell",
        );
    }
}
