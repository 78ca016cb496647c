"""The option names of keystoneauth that [placement] does not have, each with what to do. Pure.

An operator who copies nova's [placement] group finds each of its words taken or refused with the reason. The
options themselves are in agent.config.options; a test compares both with what keystoneauth registers.
"""

from collections.abc import Mapping

_VERSION = "the agent asks for the versions of Placement's API that it needs; remove the option"
_ENDPOINT = "write endpoint_override, which every auth_type takes"
_PLUGIN = (
    "it belongs to a plug-in of keystoneauth for which the agent has no options; use the auth_type password, "
    "v3applicationcredential, token, admin_token, http_basic or none"
)

REFUSED_NAMES: Mapping[str, str] = {
    "auth_section": "the agent reads its credentials from [placement] alone; write them there",
    "collect_timing": "keystoneauth would keep the time of each request in memory, and nothing reads it; "
    "plimsoll_placement_request_duration_seconds is the metric; remove the option",
    "interface": "write valid_interfaces",
    **dict.fromkeys(("version", "min_version", "max_version"), _VERSION),
    **dict.fromkeys(("endpoint", "url"), _ENDPOINT),
    **dict.fromkeys(
        (
            *("access_key", "access_secret", "access_token", "access_token_endpoint", "access_token_type"),
            *("auth_methods", "authorization_code", "client_id", "client_secret", "code"),
            *("code_challenge_method", "consumer_key", "consumer_secret", "device_authorization_endpoint"),
            *("discovery_endpoint", "identity_provider", "identity_provider_url", "idp_otp_key"),
            *(
                "login_timeout",
                "mutual_auth",
                "oauth2_client_id",
                "oauth2_client_secret",
                "oauth2_endpoint",
                "passcode",
            ),
            *("protocol", "redirect_host", "redirect_port", "redirect_uri", "scope"),
            *("service_provider_endpoint", "service_provider_entity_id"),
        ),
        _PLUGIN,
    ),
}
"""{name: why the agent does not have it, and what to write instead}"""
