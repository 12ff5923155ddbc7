"""The columns that FOCUS 1.2 makes mandatory: names, types and allowed values of the specification's tag v1.2."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FocusColumn:
    """One column of FOCUS. kind: String, Decimal or Date/Time; values: those allowed, empty for any."""

    name: str
    kind: str
    nullable: bool
    values: tuple[str, ...] = ()


_CATEGORIES: Final = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
_SERVICES: Final = (
    "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
    "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media", "Migration",
    "Mobile", "Networking", "Security", "Storage", "Web", "Other",
)  # fmt: skip
MANDATORY: Final = (
    FocusColumn("BilledCost", "Decimal", False),
    FocusColumn("BillingAccountId", "String", False),
    FocusColumn("BillingAccountName", "String", True),
    FocusColumn("BillingCurrency", "String", False),
    FocusColumn("BillingPeriodEnd", "Date/Time", False),
    FocusColumn("BillingPeriodStart", "Date/Time", False),
    FocusColumn("ChargeCategory", "String", False, _CATEGORIES),
    FocusColumn("ChargeClass", "String", True, ("Correction",)),
    FocusColumn("ChargeDescription", "String", True),
    FocusColumn("ChargePeriodEnd", "Date/Time", False),
    FocusColumn("ChargePeriodStart", "Date/Time", False),
    FocusColumn("ContractedCost", "Decimal", False),
    FocusColumn("EffectiveCost", "Decimal", False),
    FocusColumn("InvoiceIssuerName", "String", False),
    FocusColumn("ListCost", "Decimal", False),
    FocusColumn("PricingQuantity", "Decimal", True),
    FocusColumn("PricingUnit", "String", True),
    FocusColumn("ProviderName", "String", False),
    FocusColumn("PublisherName", "String", False),
    FocusColumn("ServiceCategory", "String", False, _SERVICES),
    FocusColumn("ServiceName", "String", False),
)
"""Every column that FOCUS 1.2 makes mandatory."""
