//! Where the door may be opened, and its certificate.

use std::fs;
use std::path::PathBuf;

use http_server::KeyText;
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;

use crate::http::{connect, connect_tls};
use crate::site::{DaemonProcess, Kind, Site, on_both, until};

/// Another certificate for `localhost` in the files of the site; gives it.
fn renew(site: &Site) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    fs::write(certificate(site), made.cert.pem()).expect("a file in the test's folder");
    fs::write(site.path("key.pem"), made.signing_key.serialize_pem()).expect("a file in the test's folder");
    made.cert.der().clone()
}

fn certificate(site: &Site) -> PathBuf {
    site.path("cert.pem")
}

/// The lines of `[http]` that turn TLS on.
fn tls_lines(site: &Site) -> String {
    format!("tls_cert = {:?}\ntls_key = {:?}\n", certificate(site), site.path("key.pem"))
}

#[track_caller]
fn is_refused(site: &Site, name: &str, http: &str, sections: &str, wanted: &[&str]) {
    let file = site.configure_at(name, "0.0.0.0:0", http, sections);
    let (code, log) = DaemonProcess::start(site, &file).end();
    assert_eq!(code, Some(78), "{name}: {log}");
    for text in wanted {
        assert!(log.contains(text), "{name} does not say {text:?}: {log}");
    }
}

fn another_address_than_loopback_wants_keys_and_tls(kind: Kind) {
    let site = Site::new(kind);
    renew(&site);
    let tls = tls_lines(&site);
    let key = KeyText::generate().expect("random numbers");
    let key = format!("[keys.k]\nhash = \"{}\"\nscopes = [\"admin\"]\n", key.hash());
    let no_tls = ["[http] listen = \"0.0.0.0:", "tls_cert", "allow_plaintext = true"];
    is_refused(&site, "a", "", &key, &no_tls);
    is_refused(&site, "b", "", "", &no_tls);
    let no_keys = ["[http] listen = \"0.0.0.0:", "no key is defined", "tenure key create"];
    is_refused(&site, "c", &tls, "", &no_keys);
    is_refused(&site, "d", "allow_plaintext = true\n", "", &no_keys);
    // Half of TLS is none.
    let half = format!("tls_cert = {:?}\n", certificate(&site));
    is_refused(&site, "e", &half, &key, &["tls_key"]);
    fs::write(certificate(&site), "no certificate").expect("a file in the test's folder");
    is_refused(&site, "f", &tls, &key, &["cert.pem"]);
}
on_both!(another_address_than_loopback_wants_keys_and_tls);

#[test]
fn a_certificate_is_replaced_while_clients_are_connected_and_a_broken_one_changes_nothing() {
    let site = Site::new(Kind::Sqlite);
    let first = renew(&site);
    let file = site.configure_at("a", "127.0.0.1:0", &tls_lines(&site), "");
    let daemon = DaemonProcess::start(&site, &file);
    let address = daemon.address();
    until(
        "it is ready",
        || daemon.log(),
        || {
            let mut connection = connect_tls(address, &first).ok()?;
            (connection.call("GET", "/readyz", None, None).ok()?.status == 200).then_some(())
        },
    );
    // Who speaks no TLS is not answered.
    assert!(connect(address).expect("it listens").call("GET", "/healthz", None, None).is_err());

    let mut old = connect_tls(address, &first).expect("the certificate is trusted");
    old.call("GET", "/healthz", None, None).expect("an answer").expect(200);
    let second = renew(&site);
    connect_tls(address, &second).err().expect("files are read when the daemon is told to");
    daemon.signal(Signal::HUP);
    daemon.wait_log("the certificate was read again");
    let mut new = connect_tls(address, &second).expect("the new certificate is in force");
    new.call("GET", "/v1/cluster", None, None).expect("an answer").expect(200);
    connect_tls(address, &first).err().expect("the old certificate is gone");
    old.call("GET", "/v1/cluster", None, None).expect("connections that are open go on").expect(200);

    // A broken file, then a key that is not the certificate's.
    fs::write(certificate(&site), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("a file");
    daemon.signal(Signal::HUP);
    let kept = || daemon.log().matches("the certificate stays as it was").count();
    until("the log says why", || daemon.log(), || (kept() == 1).then_some(()));
    renew(&site);
    let other = rcgen::KeyPair::generate().expect("a key");
    fs::write(site.path("key.pem"), other.serialize_pem()).expect("a file in the test's folder");
    daemon.signal(Signal::HUP);
    until("the log says why", || daemon.log(), || (kept() == 2).then_some(()));
    connect_tls(address, &second).expect("the certificate that could be used is still in force");
    old.call("GET", "/healthz", None, None).expect("an answer").expect(200);
    daemon.stop();
}
