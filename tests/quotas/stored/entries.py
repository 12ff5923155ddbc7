"""Entries of all kinds, as operators write them."""

from hypothesis import strategies as st

from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec

NAMES = st.sampled_from(["etl", "<default>", '"<default>"', '"CN=etl,O=acme"', '"a b\\"c"', "ünï"])
RATES = st.sampled_from(["1", "5MB", "60000000", "0.5MiB", "unlimited"])
OPTIONS = st.sampled_from(["", ",burst_seconds=0.25", ",mode=delay", ",scope=process", ",algorithm=ewma"])
OF_CLIENTS = st.builds("client-id={},producer_byte_rate={},consumer_byte_rate=7{}".format, NAMES, RATES, OPTIONS)
OF_PAIRS = st.builds("user={},client-id={},producer_byte_rate=0.1MB{}".format, NAMES, NAMES, OPTIONS)
OTHERS = st.sampled_from(
    [
        "ip=<default>,connection_creation_rate=20,connections=0",
        "ip=10.1.0.0/16,connections=100",
        "topic=orders,bytes_in_rate=1MB,action=reject,exempt-user=admin,exempt-client-id=a-*",
        "listener=bootstrap,connection_creation_rate=9",
        "total=true,producer_byte_rate=50MB,exempt-client-id=x",
        "resource-group=g,client-id=a-*,client-id=b,user=u,topic=t,bytes_in_rate=3MB",
        "user=u,producer_ids_rate=5",
        "resource-group=h,client-id=a,producer_byte_rate=1MB..9MB,yield_to=client-id:b-*,target=1.5ms,observe=true",
        "resource-group=i,client-id=a,producer_byte_rate=1MB..9MB,yield_to=resource-group:g,target=50ms",
        "user=v,producer_byte_rate=5MB,request_cost=1kB",
    ]
)
ENTRIES: st.SearchStrategy[QuotaEntry] = st.one_of(OF_CLIENTS, OF_PAIRS, OTHERS).map(parse_spec)
