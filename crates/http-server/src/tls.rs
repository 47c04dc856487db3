//! Certificate and key of the door, and putting others into their place.
//!
//! Owns: reading the two files, and the configuration that handshakes use.
//! Never: touches a connection that is open: it goes on with what it began with.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Largest file that is read, in bytes: a chain of certificates has some ten thousand.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what its option says.
    #[error("{path} holds no {what} in PEM: {why}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The two do not belong together, or the library cannot use them.
    #[error("certificate {certificate} and key {key} cannot be used together: {source}")]
    Pair {
        /// `[http] tls_cert`.
        certificate: PathBuf,
        /// `[http] tls_key`.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// The certificate in use, and where it came from.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the chain of certificates and the private key, both PEM.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the two cannot be used together.
    pub fn load(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Tls, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let config = RwLock::new(read(&certificate, &key)?);
        Ok(Tls { certificate, key, config })
    }

    /// Reads the files again; handshakes that begin from now on use what is in them.
    ///
    /// # Errors
    ///
    /// As [`Tls::load`]. What was in use stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.certificate, &self.key)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// What the next handshake uses.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({}, {})", self.certificate.display(), self.key.display())
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let content = |path: &Path, what, error: pem::Error| TlsError::Content {
        path: path.to_owned(),
        what,
        why: match error {
            pem::Error::NoItemsFound => "there is none in it".to_owned(),
            error => error.to_string(),
        },
    };
    let chain = CertificateDer::pem_slice_iter(&bounded(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = match chain {
        Ok(chain) if chain.is_empty() => return Err(content(certificate, "certificate", pem::Error::NoItemsFound)),
        Ok(chain) => chain,
        Err(error) => return Err(content(certificate, "certificate", error)),
    };
    let private = PrivateKeyDer::from_pem_slice(&bounded(key)?).map_err(|error| content(key, "private key", error))?;
    let pair = |source| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn bounded(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(std::io::Error::other(format!("it has {length} bytes, the most is {FILE_BYTES_MAX}"))));
    }
    fs::read(path).map_err(failed)
}
